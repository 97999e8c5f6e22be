"""A finished or running experiment to look at: two charts and one page, from the journal alone.

    reading    the journal and the kept versions of the kernel → what there is to tell (pure but for reading)
    progress   the metric per iteration, as a figure
    limits     what each workload reached, and what memory and arithmetic allow (pure)
    roofline   the same, as a figure
    drawing    the figures' one palette; a figure as PNG, or as SVG in the page's own colours
    page       the page, as one HTML file that needs nothing else
    live       the same page over HTTP on loopback, renewed as the journal grows
    command    `kopt-mcp report`

matplotlib and jinja2 come with the extra `report`. The server process never imports this package's drawing modules: it
runs `python -m kopt_mcp report` where it needs a picture.
"""
