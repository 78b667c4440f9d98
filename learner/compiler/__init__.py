"""From a recorded step of learning to machine code: recording, threads, loops, C++."""
