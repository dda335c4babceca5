"""The Flink job: sources, stages, sinks. Runs in the client that submits it (``flink run``)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyflink.common import Types
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from ...telemetry.topics import (
    TOPIC_BLOCKS,
    TOPIC_DLQ,
    TOPIC_FINDINGS,
    TOPIC_INCIDENTS,
    TOPIC_LOGS,
    TOPIC_METRICS,
    TOPIC_REQUESTS,
    TOPIC_WORDS,
)
from ...telemetry.vocabulary import Kind
from ...transport.kafka_settings import KafkaSettings
from ..entity.rules import load_rules
from . import kafka_tables
from .keyed_functions import OUTPUT_TYPE, TAGS, BeatFunction, IntakeFunction, StageFunction
from .stage_elements import Stage

INPUTS = (TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS)
OUTPUTS = (TOPIC_INCIDENTS, TOPIC_FINDINGS, TOPIC_REQUESTS, TOPIC_DLQ)
#: State is divided into so many parts: the most that can work beside each other. Never changed.
MAX_PARALLELISM = 128
JOB_NAME = "whichrank"
BEATS_PER_S = 4
_WATERMARK_MS = 100
_BUFFER_MS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """What the job is made of. parallelism 0: as the cluster or ``flink run -p`` says."""

    kafka: KafkaSettings
    checkpoint_ms: int
    parallelism: int = 0
    #: 0: somebody else writes them.
    beats_per_s: int = BEATS_PER_S
    disabled: Collection[Kind] = ()


def submit(settings: GraphSettings) -> None:
    """Builds the job and gives it to Flink; returns when it is accepted (``flink run -d``)."""
    environment = StreamExecutionEnvironment.get_execution_environment()
    if settings.parallelism:
        environment.set_parallelism(settings.parallelism)
    environment.set_max_parallelism(MAX_PARALLELISM)
    environment.enable_checkpointing(settings.checkpoint_ms)
    environment.set_buffer_timeout(_BUFFER_MS)
    environment.get_config().set_auto_watermark_interval(_WATERMARK_MS)
    tables = StreamTableEnvironment.create(environment)
    if settings.beats_per_s:
        _add_beats(tables, settings.kafka, settings.beats_per_s)
    _add_sink(tables, settings.kafka, _add_stages(tables, settings))
    environment.execute(JOB_NAME)


def _add_beats(tables: StreamTableEnvironment, kafka: KafkaSettings, per_s: int) -> None:
    options = {"connector": "datagen", "rows-per-second": str(per_s), "fields.n.kind": "random"}
    tables.execute_sql(kafka_tables.table("beats", ("n BIGINT",), options))
    rows = tables.to_data_stream(tables.sql_query("SELECT n FROM beats"))
    beats = rows.rescale().flat_map(BeatFunction(kafka, INPUTS), output_type=Types.ROW([Types.LONG()]))
    beats.set_parallelism(1).name("beats").uid("beats")


def _add_stages(tables: StreamTableEnvironment, settings: GraphSettings) -> DataStream:
    """All outputs."""
    kafka = settings.kafka
    options = kafka_tables.input_options(kafka, INPUTS, f"{kafka.topic_prefix}whichrank-flink")
    tables.execute_sql(kafka_tables.table("inputs", kafka_tables.INPUT_COLUMNS, options))
    rows = tables.to_data_stream(tables.sql_query(kafka_tables.INPUT_QUERY))
    # By turns: a large job lies in one partition, and any instance can decode any message.
    intake = rows.rebalance().process(IntakeFunction(kafka.topic_prefix, load_rules().wanted), output_type=OUTPUT_TYPE)
    made = [intake.name("intake").uid("intake")]
    for stage in (Stage.IDLENESS, Stage.RANGES, Stage.JOBS, Stage.ENTITIES, Stage.CLUSTERS):
        first, *others = [each.get_side_output(TAGS[stage]) for each in made]
        function = StageFunction(stage, kafka, settings.disabled)
        keyed = (first.union(*others) if others else first).key_by(_shard_of, key_type=Types.STRING())
        made.append(keyed.process(function, output_type=OUTPUT_TYPE).name(stage.value).uid(stage.value))
    first, *others = made
    return first.union(*others)


def _shard_of(element: tuple[str, bytes]) -> str:
    return element[0]


def _add_sink(tables: StreamTableEnvironment, kafka: KafkaSettings, outputs: DataStream) -> None:
    options = kafka_tables.output_options(kafka, OUTPUTS, f"{kafka.topic_prefix}whichrank-flink")
    tables.execute_sql(kafka_tables.table("outputs", kafka_tables.OUTPUT_COLUMNS, options))
    schema = (
        Schema.new_builder()
        .column("topic", DataTypes.STRING())
        .column("headers", DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES()))
        .column("k", DataTypes.BYTES())
        .column("v", DataTypes.BYTES())
        .build()
    )
    statements = tables.create_statement_set()
    statements.add_insert("outputs", tables.from_data_stream(outputs, schema))
    statements.attach_as_datastream()
