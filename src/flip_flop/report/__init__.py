"""Reports and tables from audit run directories."""
