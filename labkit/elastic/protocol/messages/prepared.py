"""Builds the decoders of all messages when it is imported: a fork server does so once for all of its children."""

from labkit.elastic.protocol.messages.blocks import (
    AwaitReplicas,
    BlocksMoved,
    BlockState,
    Gradient,
    Pull,
    ReplicasAdded,
    ReplicasReady,
)
from labkit.elastic.protocol.messages.clients import ClientAnswer, ClientRequest, LauncherOrder, LauncherReport
from labkit.elastic.protocol.messages.codec import Hello, warm
from labkit.elastic.protocol.messages.orders import Order
from labkit.elastic.protocol.messages.reports import Report
from labkit.elastic.protocol.program import Spec

warm(Order, Report, LauncherOrder, LauncherReport, ClientRequest, ClientAnswer, Hello, Spec)
warm(Gradient, Pull, BlocksMoved, BlockState, ReplicasAdded, ReplicasReady, AwaitReplicas)
