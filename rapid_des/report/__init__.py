"""Results for people: metrics, breakdowns, timelines, plots and tables."""
