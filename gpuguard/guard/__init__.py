"""The loop: watch, observe, judge, mend, and the ledger."""
