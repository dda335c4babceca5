"""DeepSpeed engine with ZeRO-1 on the CPU."""
# mypy: ignore-errors

from deepspeed_job import main

main(1)
