"""HTML pages, SVG charts and Markdown tables, of which reports and analyses are made."""
