"""The data of a job: chunks, their leases to members, and their moves from member to member."""
