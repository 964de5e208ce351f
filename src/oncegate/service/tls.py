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
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        where = settings.where("serve.tls_cert")
        raise SettingError(f"{where}: {certificate} and {key} cannot be used: {_why(error)}") from error
    return context


def _no_passphrase() -> bytes:
    """Asked for where a person would be: a service has nobody to ask."""
    raise ValueError("the key has a passphrase; keep it without one, readable by the service alone")


def _why(error: Exception) -> str:
    """The reason without the numbers of OpenSSL."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is that of another certificate"
        return "they must be PEM files, tls_cert that of the certificate chain and tls_key that of its private key"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
