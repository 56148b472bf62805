"""From a job to operators to a trace for every rank."""
