"""The protocol of the replay service: `replay.proto`, and what protoc makes of it."""
