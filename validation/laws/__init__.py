"""Laws that hold whatever the right number is, checked on drawn jobs, machines and faults."""
