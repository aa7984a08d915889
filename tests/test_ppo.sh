#!/bin/bash
# PPO from the command line: solves CartPole, goes on bit for bit, plays, names what is wrong.
. "$(dirname "$0")/shell_lib.sh"
