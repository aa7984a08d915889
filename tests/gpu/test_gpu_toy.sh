#!/usr/bin/env bash
# tests/test_toy.sh on the GPU.
TOY_DEVICE=cuda exec bash "$(dirname "$0")/../test_toy.sh" "$@"
