"""What people and monitors look at: the page, the document of the API, the metrics, and the log of
requests.
"""
