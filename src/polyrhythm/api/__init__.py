"""The Python interface: it turns keywords into a job, runs the job and returns its result. The
command line is a layer over it. `polyrhythm/__init__.py` lists the public names."""
