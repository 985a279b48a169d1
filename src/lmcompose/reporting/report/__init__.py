"""The report on folders of results: one page in HTML and the same in Markdown. It computes nothing that it shows."""
