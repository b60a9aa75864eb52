"""The sentinel: a small process that heals at the write and names the writer."""
