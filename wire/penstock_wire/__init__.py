"""All that crosses a process boundary of Penstock: documents, headers, errors, HTTP front and upstream."""
