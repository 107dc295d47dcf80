"""What people and monitors look at: the page, the document of the API, the metrics, and the log of requests."""

from __future__ import annotations

from tinker.local.web.pages import web_routes
from tinker.local.web.traffic import Traffic, TrafficWatch

__all__ = ["Traffic", "TrafficWatch", "web_routes"]
