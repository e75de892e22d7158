# For a machine without a GPU: docker build --tag flip-flop . && docker run --rm --volume "$PWD:/data" flip-flop --help
# Torch's default wheel holds CUDA's libraries; an index with the smaller one is given with
#     docker build --build-arg PIP_EXTRA_INDEX_URL=ADDRESS .
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 HF_HOME=/data/.cache/huggingface
COPY . /src
RUN PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL" pip install --constraint /src/constraints.txt "/src[studies]" && rm -rf /src
RUN useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["flip-flop"]
CMD ["--help"]
