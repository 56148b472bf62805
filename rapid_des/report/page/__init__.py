"""A report as one HTML file that needs nothing else: no network, no fonts, no library.

svg        charts as SVG and HTML
lanes      what ran when, as SVG and as data for the zoom
document   the page: sections, tables, style, script
run        the sections that need what `run --json` prints
details    the sections that need the run itself
whole_run  the page of a run, from both
saved      the page of a file of `run --json`
fabric     the fabric of a run, from fabric_diagrams; diagram_svg draws it
studies    the sections of comparisons and of studies

What charts show stands in `rapid_des.report.charts`.
"""
