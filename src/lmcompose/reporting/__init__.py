"""Reading results: tables for the terminal and for Markdown, figures as PNG. It computes nothing that it shows."""
