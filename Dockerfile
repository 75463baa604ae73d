# Leakscope from its wheel:  docker build -t leakscope .
#   docker run --rm -v "$PWD":/work leakscope audit demo
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# The exact versions that the tests ran with; torch first, so that no looser request pulls another one.
COPY constraints.txt /tmp/constraints.txt
RUN python -m pip install --no-cache-dir --constraint /tmp/constraints.txt torch torchvision
COPY --from=wheel /wheels /tmp/wheels
RUN python -m pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/wheels/*.whl \
    && rm -r /tmp/wheels /tmp/constraints.txt \
    && useradd --create-home --uid 1000 leakscope
# Nothing that an audit does needs more rights than its folder.
USER 1000
WORKDIR /work
ENTRYPOINT ["leakscope"]
CMD ["--help"]
