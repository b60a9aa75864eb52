"""What things are: rules, devices, containers, verdicts, plans. Pure: no I/O, no clock."""
