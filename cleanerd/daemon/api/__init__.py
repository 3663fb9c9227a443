"""The control API and the metrics pages: HTTP servers, routes, and the verbs behind them."""
