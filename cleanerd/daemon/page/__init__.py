"""The status page as HTML: pure functions from the values of `values.models`. It needs no script and loads nothing."""
