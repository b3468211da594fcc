# Penstock's images: `--target operator|router|sidecar|python-model`, and one for each format of model files:
# `--target format-model --build-arg FORMAT=huggingface|lightgbm|mlflow|onnx|sklearn|xgboost`.
#
# Each is the base, a virtual environment at /opt/penstock with what its requirements/*.lock pins, and our
# packages in a layer of their own on top: after a change of code only that layer is new. The processes run
# as user 65532, on a root file system that may be read-only; they write to /tmp alone.
ARG BASE=python:3.13-slim

# -- what builds, and is not in any image --------------------------------------------------------------
FROM ${BASE} AS tools
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_CACHE_DIR=1
# Bytecode goes by hash and not by time: two builds of a commit give the same files, and imports read no source.
ENV PYTHONHASHSEED=0 BYTECODE="python3 -m compileall -qf --invalidation-mode unchecked-hash"
COPY requirements/build.lock /requirements/
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --require-hashes -r /requirements/build.lock

FROM tools AS packages
WORKDIR /source
# .dockerignore lets through what the wheel is built from. One COPY: each would be a layer to commit.
COPY . .
# --target writes scripts whose first line names this stage's Python: the entry points use `python -m`.
RUN /opt/tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/tools/bin/pip install --quiet --no-compile --no-deps --no-index --target /packages /wheels/*.whl \
    && rm -rf /packages/bin && $BYTECODE /packages

# The modules on the path of a request, compiled. In stages of their own: a change elsewhere compiles nothing
# anew, and no image has the compiler. Where none can be had (no mirror of Debian within reach), the folder
# stays empty and the modules are Python, which the build tells; COMPILE=no asks for that, =yes forbids it.
FROM tools AS compiler
ARG COMPILE
COPY requirements/compile.lock /requirements/
RUN test "${COMPILE}" = no || /opt/tools/bin/pip install --quiet --require-hashes -r /requirements/compile.lock
RUN test "${COMPILE}" = no \
    || { apt-get -o APT::Sandbox::User=root update -qq \
         && apt-get -o APT::Sandbox::User=root install -qq --no-install-recommends gcc libc6-dev \
            "$(python3 -c 'import sys; print("python3-dev" if sys.prefix == "/usr" else "gcc")')" \
         && rm -rf /var/lib/apt/lists /var/cache/apt; } >/tmp/apt.log 2>&1 \
    || tail -n 5 /tmp/apt.log

FROM compiler AS compiled
WORKDIR /source
COPY compile_modules.py ./
COPY wire wire
COPY sidecar sidecar
COPY router router
RUN mkdir /compiled && case "${COMPILE}" in \
    no) ;; \
    yes) /opt/tools/bin/python compile_modules.py /compiled ;; \
    *) /opt/tools/bin/python compile_modules.py --if-possible /compiled ;; \
    esac

# The environments have no pip of their own: `pip --python` installs from outside. The .pth file is how an
# environment finds our packages, which a later layer brings.
# Of Kubernetes' client the operator uses neither the classes of APIs nor, with asyncio, those of objects: 94 MB.
FROM tools AS operator-environment
COPY requirements/operator.lock /requirements/
RUN python3 -m venv --without-pip /opt/penstock \
    && /opt/tools/bin/pip --python /opt/penstock/bin/python install --quiet --no-compile --require-hashes -r /requirements/operator.lock \
    && cd /opt/penstock/lib/python3*/site-packages && echo /opt/penstock/packages > penstock.pth \
    && rm -r kubernetes/client/api kubernetes/aio/client/api \
    && find kubernetes/aio/client/models -type f ! -name __init__.py -delete \
    && $BYTECODE /opt/penstock/lib

FROM tools AS router-environment
COPY requirements/router.lock requirements/tracing.lock /requirements/
RUN python3 -m venv --without-pip /opt/penstock \
    && /opt/tools/bin/pip --python /opt/penstock/bin/python install --quiet --no-compile --require-hashes \
      -r /requirements/router.lock -r /requirements/tracing.lock \
    && echo /opt/penstock/packages > "$(echo /opt/penstock/lib/python3*/site-packages)/penstock.pth" \
    && $BYTECODE /opt/penstock/lib

FROM tools AS sidecar-environment
COPY requirements/sidecar.lock requirements/tracing.lock requirements/artifact.lock /requirements/
RUN python3 -m venv --without-pip /opt/penstock \
    && /opt/tools/bin/pip --python /opt/penstock/bin/python install --quiet --no-compile --require-hashes \
      -r /requirements/sidecar.lock -r /requirements/tracing.lock -r /requirements/artifact.lock \
    && echo /opt/penstock/packages > "$(echo /opt/penstock/lib/python3*/site-packages)/penstock.pth" \
    && $BYTECODE /opt/penstock/lib

# This one has pip: images with a model in them start from it and install what the model needs.
FROM tools AS python-model-environment
COPY requirements/sdk.lock /requirements/
RUN python3 -m venv /opt/penstock \
    && /opt/penstock/bin/pip install --quiet --no-compile --require-hashes -r /requirements/sdk.lock \
    && echo /opt/penstock/packages > "$(echo /opt/penstock/lib/python3*/site-packages)/penstock.pth" \
    && $BYTECODE /opt/penstock/lib

FROM tools AS format-environment
ARG FORMAT
# LightGBM's wheel leaves OpenMP's library to the system. --no-deps: tokenizers' lock leaves out what only
# downloads, and pip would look for it.
RUN mkdir -p /opt/penstock/lib && test "${FORMAT}" != lightgbm -a "${FORMAT}" != mlflow \
    || { apt-get -o APT::Sandbox::User=root update -qq \
         && apt-get -o APT::Sandbox::User=root install -qq --no-install-recommends libgomp1 \
         && cp /usr/lib/*/libgomp.so.1 /opt/penstock/lib/ && rm -rf /var/lib/apt/lists /var/cache/apt; } >/dev/null
COPY requirements/${FORMAT}.lock /requirements/
RUN python3 -m venv --without-pip /opt/penstock \
    && /opt/tools/bin/pip --python /opt/penstock/bin/python install --quiet --no-compile --no-deps --require-hashes \
      -r /requirements/${FORMAT}.lock \
    && echo /opt/penstock/packages > "$(echo /opt/penstock/lib/python3*/site-packages)/penstock.pth" \
    && $BYTECODE /opt/penstock/lib

# -- what runs -----------------------------------------------------------------------------------------
FROM ${BASE} AS runtime
RUN echo 'penstock:x:65532:65532:penstock:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'penstock:x:65532:' >> /etc/group
ENV PATH=/opt/penstock/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /tmp
# A number: with a name, `runAsNonRoot` cannot be checked.
USER 65532:65532

FROM runtime AS operator
ENTRYPOINT ["python", "-m", "penstock_operator"]
COPY --from=operator-environment /opt/penstock /opt/penstock
COPY --from=packages /packages /opt/penstock/packages

FROM runtime AS router
ENTRYPOINT ["python", "-m", "penstock_router"]
COPY --from=router-environment /opt/penstock /opt/penstock
COPY --from=packages /packages /opt/penstock/packages
COPY --from=compiled /compiled /opt/penstock/packages

FROM runtime AS sidecar
ENTRYPOINT ["python", "-m", "penstock_sidecar"]
COPY --from=sidecar-environment /opt/penstock /opt/penstock
COPY --from=packages /packages /opt/penstock/packages
COPY --from=compiled /compiled /opt/penstock/packages

FROM runtime AS format-model
ENV LD_LIBRARY_PATH=/opt/penstock/lib
ENTRYPOINT ["python", "-m", "penstock.serve"]
COPY --from=format-environment /opt/penstock /opt/penstock
COPY --from=packages /packages /opt/penstock/packages

FROM runtime AS python-model
ENTRYPOINT ["python", "-m", "penstock.serve"]
COPY --from=python-model-environment /opt/penstock /opt/penstock
COPY --from=packages /packages /opt/penstock/packages
