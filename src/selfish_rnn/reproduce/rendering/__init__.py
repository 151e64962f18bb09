"""From results to Markdown: tables, verdicts, documents, figures."""
