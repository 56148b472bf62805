"""All tables of accuracy by one command: `python -m validation.refresh_accuracy`.

It fits the forecasts of steps and of memory, scores all measured jobs (each is run once), and rewrites the
tables and pictures of `validation/README.md`, `docs/accuracy` and the README, with the date and the commit.
Takes an hour and a half of two cores.
"""

from validation import fit_forecast, fit_memory, refresh_docs, refresh_jobs

if __name__ == "__main__":
    fit_forecast.main()
    fit_memory.main()
    refresh_jobs.main()
    refresh_docs.refresh()
