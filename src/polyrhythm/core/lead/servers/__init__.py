"""The servers of a job, the slices that each of them holds, and links that are broken."""
