"""The processes of a job: nodes that hand events to machines and perform the effects they
return."""
