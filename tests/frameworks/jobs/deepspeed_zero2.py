"""DeepSpeed engine with ZeRO-2 on the CPU."""
# mypy: ignore-errors

from deepspeed_job import main

main(2)
