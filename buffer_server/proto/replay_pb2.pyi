from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    BOOL: _ClassVar[DType]
    UINT8: _ClassVar[DType]
    INT8: _ClassVar[DType]
    UINT16: _ClassVar[DType]
    INT16: _ClassVar[DType]
    UINT32: _ClassVar[DType]
    INT32: _ClassVar[DType]
    UINT64: _ClassVar[DType]
    INT64: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    FLOAT64: _ClassVar[DType]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[Compression]
    LZ4: _ClassVar[Compression]
DTYPE_UNSPECIFIED: DType
BOOL: DType
UINT8: DType
INT8: DType
UINT16: DType
INT16: DType
UINT32: DType
INT32: DType
UINT64: DType
INT64: DType
FLOAT16: DType
FLOAT32: DType
FLOAT64: DType
NONE: Compression
LZ4: Compression

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data", "compression")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    compression: Compression
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., compression: _Optional[_Union[Compression, str]] = ...) -> None: ...

class ColumnSignature(_message.Message):
    __slots__ = ("name", "dtype", "shape", "stack")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    stack: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., stack: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_version", "max_message_bytes", "tables")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    max_message_bytes: int
    tables: _containers.RepeatedCompositeFieldContainer[TableDescription]
    def __init__(self, protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableDescription, _Mapping]]] = ...) -> None: ...

class TableDescription(_message.Message):
    __slots__ = ("name", "capacity_items", "capacity_bytes", "signature", "signature_hash", "consumes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_HASH_FIELD_NUMBER: _ClassVar[int]
    CONSUMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_items: int
    capacity_bytes: int
    signature: _containers.RepeatedCompositeFieldContainer[ColumnSignature]
    signature_hash: int
    consumes: bool
    def __init__(self, name: _Optional[str] = ..., capacity_items: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., signature: _Optional[_Iterable[_Union[ColumnSignature, _Mapping]]] = ..., signature_hash: _Optional[int] = ..., consumes: _Optional[bool] = ...) -> None: ...

class InsertRequest(_message.Message):
    __slots__ = ("table", "signature_hash", "writer", "sequence", "columns", "priorities", "timeout_seconds", "frames")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_HASH_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    table: str
    signature_hash: int
    writer: bytes
    sequence: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    priorities: Column
    timeout_seconds: float
    frames: Column
    def __init__(self, table: _Optional[str] = ..., signature_hash: _Optional[int] = ..., writer: _Optional[bytes] = ..., sequence: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., priorities: _Optional[_Union[Column, _Mapping]] = ..., timeout_seconds: _Optional[float] = ..., frames: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class InsertResponse(_message.Message):
    __slots__ = ("sequence", "items", "duplicate", "refusal", "previous_sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    items: int
    duplicate: bool
    refusal: Refusal
    previous_sequence: int
    def __init__(self, sequence: _Optional[int] = ..., items: _Optional[int] = ..., duplicate: _Optional[bool] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., previous_sequence: _Optional[int] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("table", "signature_hash", "size", "timeout_seconds", "own_items", "own_policy", "max_age_versions", "partial", "compression", "consumer")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OWN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    OWN_POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    table: str
    signature_hash: int
    size: int
    timeout_seconds: float
    own_items: int
    own_policy: int
    max_age_versions: int
    partial: bool
    compression: Compression
    consumer: int
    def __init__(self, table: _Optional[str] = ..., signature_hash: _Optional[int] = ..., size: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., own_items: _Optional[int] = ..., own_policy: _Optional[int] = ..., max_age_versions: _Optional[int] = ..., partial: _Optional[bool] = ..., compression: _Optional[_Union[Compression, str]] = ..., consumer: _Optional[int] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("columns", "keys", "probabilities", "refusal", "beta", "population", "frames")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    keys: Column
    probabilities: Column
    refusal: Refusal
    beta: float
    population: Population
    frames: Column
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., keys: _Optional[_Union[Column, _Mapping]] = ..., probabilities: _Optional[_Union[Column, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., beta: _Optional[float] = ..., population: _Optional[_Union[Population, _Mapping]] = ..., frames: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class Population(_message.Message):
    __slots__ = ("items", "mass", "own_items")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    OWN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: int
    mass: float
    own_items: int
    def __init__(self, items: _Optional[int] = ..., mass: _Optional[float] = ..., own_items: _Optional[int] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("table", "keys", "priorities")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: Column
    priorities: Column
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Union[Column, _Mapping]] = ..., priorities: _Optional[_Union[Column, _Mapping]] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("refusal",)
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class StatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatisticsResponse(_message.Message):
    __slots__ = ("tables", "uptime_seconds", "open_streams", "running_requests", "draining", "requests", "checkpoint", "clients", "inflight_bytes", "refused")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableStatistics]
    uptime_seconds: float
    open_streams: int
    running_requests: int
    draining: bool
    requests: _containers.RepeatedCompositeFieldContainer[RequestStatistics]
    checkpoint: CheckpointStatistics
    clients: int
    inflight_bytes: int
    refused: _containers.RepeatedCompositeFieldContainer[Refused]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableStatistics, _Mapping]]] = ..., uptime_seconds: _Optional[float] = ..., open_streams: _Optional[int] = ..., running_requests: _Optional[int] = ..., draining: _Optional[bool] = ..., requests: _Optional[_Iterable[_Union[RequestStatistics, _Mapping]]] = ..., checkpoint: _Optional[_Union[CheckpointStatistics, _Mapping]] = ..., clients: _Optional[int] = ..., inflight_bytes: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refused, _Mapping]]] = ...) -> None: ...

class RequestStatistics(_message.Message):
    __slots__ = ("operation", "count", "per_second", "p50_seconds", "p99_seconds")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    operation: str
    count: int
    per_second: float
    p50_seconds: float
    p99_seconds: float
    def __init__(self, operation: _Optional[str] = ..., count: _Optional[int] = ..., per_second: _Optional[float] = ..., p50_seconds: _Optional[float] = ..., p99_seconds: _Optional[float] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "count")
    CODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    code: int
    count: int
    def __init__(self, code: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class CheckpointStatistics(_message.Message):
    __slots__ = ("path", "age_seconds", "duration_seconds", "items", "bytes", "failures")
    PATH_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    path: str
    age_seconds: float
    duration_seconds: float
    items: int
    bytes: int
    failures: int
    def __init__(self, path: _Optional[str] = ..., age_seconds: _Optional[float] = ..., duration_seconds: _Optional[float] = ..., items: _Optional[int] = ..., bytes: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...

class TableStatistics(_message.Message):
    __slots__ = ("name", "size_items", "capacity_items", "size_bytes", "capacity_bytes", "inserted_items", "sampled_items", "duplicate_inserts", "limiter", "surplus", "blocked", "evicted_items", "policies", "newest_age_seconds", "oldest_age_seconds", "insert_wait_seconds", "sample_wait_seconds", "consumers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSERTED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_INSERTS_FIELD_NUMBER: _ClassVar[int]
    LIMITER_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INSERT_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_items: int
    capacity_items: int
    size_bytes: int
    capacity_bytes: int
    inserted_items: int
    sampled_items: int
    duplicate_inserts: int
    limiter: LimiterSettings
    surplus: float
    blocked: _containers.RepeatedCompositeFieldContainer[Blocked]
    evicted_items: int
    policies: _containers.RepeatedCompositeFieldContainer[PolicyShare]
    newest_age_seconds: float
    oldest_age_seconds: float
    insert_wait_seconds: float
    sample_wait_seconds: float
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerStatistics]
    def __init__(self, name: _Optional[str] = ..., size_items: _Optional[int] = ..., capacity_items: _Optional[int] = ..., size_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., inserted_items: _Optional[int] = ..., sampled_items: _Optional[int] = ..., duplicate_inserts: _Optional[int] = ..., limiter: _Optional[_Union[LimiterSettings, _Mapping]] = ..., surplus: _Optional[float] = ..., blocked: _Optional[_Iterable[_Union[Blocked, _Mapping]]] = ..., evicted_items: _Optional[int] = ..., policies: _Optional[_Iterable[_Union[PolicyShare, _Mapping]]] = ..., newest_age_seconds: _Optional[float] = ..., oldest_age_seconds: _Optional[float] = ..., insert_wait_seconds: _Optional[float] = ..., sample_wait_seconds: _Optional[float] = ..., consumers: _Optional[_Iterable[_Union[ConsumerStatistics, _Mapping]]] = ...) -> None: ...

class PolicyShare(_message.Message):
    __slots__ = ("policy_id", "items", "newest_version")
    POLICY_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_id: int
    items: int
    newest_version: int
    def __init__(self, policy_id: _Optional[int] = ..., items: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...

class ConsumerStatistics(_message.Message):
    __slots__ = ("consumer", "samples_per_insert", "sampled_items", "surplus", "caller", "waiting_samples", "held_inserts")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    WAITING_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HELD_INSERTS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    samples_per_insert: float
    sampled_items: int
    surplus: float
    caller: str
    waiting_samples: int
    held_inserts: int
    def __init__(self, consumer: _Optional[int] = ..., samples_per_insert: _Optional[float] = ..., sampled_items: _Optional[int] = ..., surplus: _Optional[float] = ..., caller: _Optional[str] = ..., waiting_samples: _Optional[int] = ..., held_inserts: _Optional[int] = ...) -> None: ...

class Blocked(_message.Message):
    __slots__ = ("caller", "operation", "items", "seconds", "reason", "consumer")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    caller: str
    operation: str
    items: int
    seconds: float
    reason: str
    consumer: int
    def __init__(self, caller: _Optional[str] = ..., operation: _Optional[str] = ..., items: _Optional[int] = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ..., consumer: _Optional[int] = ...) -> None: ...

class LimiterSettings(_message.Message):
    __slots__ = ("min_size", "samples_per_insert", "error_buffer", "consumers", "consumer_buffer_items")
    class ConsumersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    ERROR_BUFFER_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_BUFFER_ITEMS_FIELD_NUMBER: _ClassVar[int]
    min_size: int
    samples_per_insert: float
    error_buffer: float
    consumers: _containers.ScalarMap[int, float]
    consumer_buffer_items: int
    def __init__(self, min_size: _Optional[int] = ..., samples_per_insert: _Optional[float] = ..., error_buffer: _Optional[float] = ..., consumers: _Optional[_Mapping[int, float]] = ..., consumer_buffer_items: _Optional[int] = ...) -> None: ...

class ConfigureLimiterRequest(_message.Message):
    __slots__ = ("table", "settings")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    table: str
    settings: LimiterSettings
    def __init__(self, table: _Optional[str] = ..., settings: _Optional[_Union[LimiterSettings, _Mapping]] = ...) -> None: ...

class ConfigureLimiterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigureConsumersRequest(_message.Message):
    __slots__ = ("table", "samples_per_insert")
    class SamplesPerInsertEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    table: str
    samples_per_insert: _containers.ScalarMap[int, float]
    def __init__(self, table: _Optional[str] = ..., samples_per_insert: _Optional[_Mapping[int, float]] = ...) -> None: ...

class ConfigureConsumersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("path", "items", "bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    items: int
    bytes: int
    def __init__(self, path: _Optional[str] = ..., items: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("running_requests",)
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    running_requests: int
    def __init__(self, running_requests: _Optional[int] = ...) -> None: ...
