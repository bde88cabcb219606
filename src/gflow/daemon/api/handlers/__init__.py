"""One module for each group of routes. The route table is `daemon.api.routes`."""
