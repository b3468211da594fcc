"""Pages, chart and examples as tests take them: at their word.

Read in this order: `page` (a page of docs/, run), `tutorial`, `documented`, `example_cases`, `chart` (as helm
renders it), `monitoring` (its alerts and dashboards), `reasons` (those that the operator's code may give).
"""
