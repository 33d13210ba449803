# docker build -t limpid .
# docker run --rm -v "$PWD:/work" limpid train --data book.txt
FROM rust:1.95-slim AS build
WORKDIR /limpid
COPY . .
RUN cargo build --profile dist --locked --package limpid-cli

FROM debian:stable-slim
COPY --from=build /limpid/target/dist/limpid /usr/local/bin/limpid
WORKDIR /work
ENTRYPOINT ["limpid"]
