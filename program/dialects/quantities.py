"""Kubernetes quantities, for the dialects' parsers; they are read in `program.desired.quantities`."""

from program.desired.quantities import bytes_of as bytes_of
from program.desired.quantities import check_quantity as check_quantity
from program.desired.quantities import parse_quantity as parse_quantity
from program.desired.quantities import read_quantity as read_quantity
