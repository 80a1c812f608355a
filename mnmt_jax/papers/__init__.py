"""The papers' tables and figures as data, and the workflow that reproduces them."""
