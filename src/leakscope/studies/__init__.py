"""Studies: finished audits become a page that says which published claims hold."""
