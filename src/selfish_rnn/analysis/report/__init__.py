"""A page of runs to send around.

Example::

    from selfish_rnn.analysis.records import read_run
    from selfish_rnn.analysis.report import write_report

    write_report([read_run("runs/selfish"), read_run("runs/static")], "report.html")
"""

from selfish_rnn.analysis.report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
