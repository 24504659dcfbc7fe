# An image with polyrhythm, made from a clone of its repository. For machines with GPUs:
#   docker build -t polyrhythm:0.1.0 .
# A smaller one for machines without:
#   docker build -t polyrhythm:0.1.0 --build-arg INDEX=https://download.pytorch.org/whl/cpu .
FROM python:3.12-slim

ARG INDEX=https://pypi.org/simple
COPY constraints.txt /src/
RUN pip install --no-cache-dir --index-url "$INDEX" -c /src/constraints.txt torch

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir -c /src/constraints.txt '/src[jobs]'

# The processes of a job need no rights. /data is where a lead keeps its runs.
RUN useradd --uid 1000 --create-home polyrhythm && install -d -o polyrhythm -g polyrhythm /data
USER 1000:1000
WORKDIR /data
CMD ["polyrhythm", "--help"]
