"""Trains the demo with several seeds, one after another, each in a process of its own, and reports if it learns.

    python benchmarks/demo_seeds.py --seeds 10

prints a Markdown table: the mean reward of the first and of the last tenth of the steps, and the seconds in all, by the
clock and of processor time, imports and the environment's server included. The clock depends on what else is running.
"""

import argparse
import resource
import subprocess
import sys
import time
from statistics import fmean

ENOUGH = 0.2
"""The rise in mean reward that a reader of the curve cannot miss."""

ONE_RUN = """
import sys
from logs_ui.rollout.demo.demo import DemoSettings, train_demo
train_demo(
    DemoSettings(steps=int(sys.argv[1]), seed=int(sys.argv[2])),
    on_step=lambda step, steps, reward: print("reward", reward, flush=True),
)
"""


def rewards_of(seed: int, steps: int) -> list[float]:
    """Train once; each step's mean reward."""
    command = [sys.executable, "-W", "ignore", "-c", ONE_RUN, str(steps), str(seed)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [float(line.split()[1]) for line in output.splitlines() if line.startswith("reward ")]


def cpu_seconds() -> float:
    """Processor time of all the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds to train")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    print("| seed | first 10 % | last 10 % | rise | seconds | CPU seconds |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    rises = []
    for seed in range(options.first, options.first + options.seeds):
        started, started_cpu = time.monotonic(), cpu_seconds()
        rewards = rewards_of(seed, options.steps)
        seconds, cpu = time.monotonic() - started, cpu_seconds() - started_cpu
        tenth = max(1, len(rewards) // 10)
        first, last = fmean(rewards[:tenth]), fmean(rewards[-tenth:])
        rises.append(last - first)
        print(f"| {seed} | {first:.3f} | {last:.3f} | {last - first:+.3f} | {seconds:.0f} | {cpu:.0f} |", flush=True)
    print(f"\n{sum(rise >= ENOUGH for rise in rises)} of {len(rises)} seeds rise by {ENOUGH} or more.")


if __name__ == "__main__":
    main()
