"""Transactions of the store as messages. Pure.

A native revision of 0 means that the key must be absent. It is set only on purpose, never from a caller's version.
"""

from __future__ import annotations

from anabranch.metadata.etcd import etcd_pb2 as pb
from anabranch.metadata.etcd.keys import Range


def compare(key: bytes, native: int) -> pb.Compare:
    """The key was last written at this revision, or is absent (0)."""
    assert native >= 0
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=native)


def compare_empty(part: Range) -> pb.Compare:
    """No key in this range: an absent key counts as created at 0."""
    begin, end = part
    return pb.Compare(target=pb.Compare.CREATE, key=begin, range_end=end, create_revision=0)


def put_op(key: bytes, stored: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=stored, lease=lease))


def delete_op(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def range_op(key: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def guarded(key: bytes, native: int, epoch: tuple[bytes, int], then: pb.RequestOp) -> pb.TxnRequest:
    """Do `then` if record and epoch are as last seen; otherwise read both."""
    epoch_key, epoch_native = epoch
    guards = [compare(key, native)]
    if key != epoch_key:
        guards.append(compare(epoch_key, epoch_native))
    return pb.TxnRequest(compare=guards, success=[then], failure=[range_op(key), range_op(epoch_key)])


def found(response: pb.TxnResponse, index: int) -> pb.KeyValue | None:
    """The result of the transaction's read number `index`."""
    kvs = response.responses[index].response_range.kvs
    return kvs[0] if kvs else None
