"""The fabric: shapes, links, routes, faults and collectives."""
