"""TLS towards those who send."""

import ssl

from oncegate.errors import SettingError
from oncegate.settings import Settings


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the certificate that was named; None if none was."""
    certificate, key = settings["serve.tls_cert"], settings["serve.tls_key"]
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        named, other = ("tls_key", "tls_cert") if certificate is None else ("tls_cert", "tls_key")
        raise SettingError(f"{settings.where(f'serve.{named}')}: TLS needs serve.{other} too")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        where = settings.where("serve.tls_cert")
        raise SettingError(f"{where}: {certificate} and {key} cannot be used: {error.strerror or error}") from error
    return context
