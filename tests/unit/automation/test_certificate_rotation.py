"""The replacement of a server's certificate: when it is due, which authorities are written, and when it is used."""

from __future__ import annotations

import datetime

from automation.certificates.rotation import ServingCertificate

HOUR = datetime.timedelta(hours=1)


def test_the_next_certificate_is_used_only_after_both_authorities_were_written() -> None:
    now = [datetime.datetime.now(datetime.UTC)]
    made = ServingCertificate(["a.ns.svc"], lifetime=HOUR, settle_s=0.0, clock=lambda: now[0])
    first = made.files
    made.renew_if_due()
    assert (made.settle(), made.authorities, made.renewal_s) == (None, first["ca.crt"], 1800.0)
    now[0] += HOUR / 2
    assert made.renewal_s == 0.0
    made.renew_if_due()
    both = made.authorities
    made.renew_if_due()
    assert made.authorities == both, "there is one next certificate"
    assert made.files is first and both.startswith(first["ca.crt"]) and both != first["ca.crt"]
    assert made.settle() == 0.0
    assert (first["ca.crt"] + made.files["ca.crt"], made.authorities) == (both, made.files["ca.crt"])
    assert (made.settle(), made.renewal_s) == (None, 1800.0)


def test_the_present_certificate_stays_until_every_api_server_can_know_the_next_one() -> None:
    now = [datetime.datetime.now(datetime.UTC)]
    made = ServingCertificate(["a.ns.svc"], lifetime=HOUR, settle_s=3600.0, clock=lambda: now[0])
    first = made.files
    now[0] += HOUR
    made.renew_if_due()
    left_s = made.settle()
    assert left_s is not None and 0.0 < left_s <= 3600.0
    assert made.files is first
