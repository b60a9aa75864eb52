"""TLS for the metrics endpoint."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import ConfigError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. With `client_ca` every client must show a certificate that this CA signed."""

    cert: str
    key: str
    client_ca: Optional[str] = None

    def context(self) -> ssl.SSLContext:
        """Read the files. Blocks on the disk; raises ConfigError that names the file."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Python 3.9 would still accept TLS 1.0.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise ConfigError(f"tls_cert {self.cert} with tls_key {self.key}: {error}") from error
        if self.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ConfigError(f"client_ca {self.client_ca}: {error}") from error
        return context
