# The program alone in an image without a shell, run by nobody in particular.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /recon-dlq ./cmd/recon-dlq

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /recon-dlq /recon-dlq
USER 65532:65532
EXPOSE 9644
ENTRYPOINT ["/recon-dlq"]
CMD ["run"]
