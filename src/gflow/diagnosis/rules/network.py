"""Rules about the network: model hubs, downloads, experiment trackers."""

from __future__ import annotations

from gflow.diagnosis.rules.rule import Confidence, Depth, Rule

RULES = (
    Rule(
        "hub-access",
        ("GatedRepoError", "gated repo", "is restricted. You must", "awaiting a review from the repo authors", "not in the authorized list"),
        "The model hub refuses access: the repository is gated, or the token is missing.",
        ("accept its licence on its page, then log in once: huggingface-cli login, or set HF_TOKEN in the job",),
        "OSError: You are trying to access a gated repo. Make sure to have access to it at the hub's page of the model.",
        r"^(?!.*private or gated)",
    ),
    Rule(
        "hub-access",
        ("Access to model", "Invalid user token", "Token is required", "You must have access to it", "LocalTokenNotFoundError", "token seems invalid", "is gated"),
        "The model hub refuses access: the token is missing or has no rights.",
        ("log in once: huggingface-cli login, or set HF_TOKEN in the job",),
        "huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "hub-missing",
        ("RepositoryNotFoundError", "404 Client Error", "Couldn't find a dataset script", "is not a valid model identifier", "is not a local folder and is not a valid model identifier", "EntryNotFoundError", "RevisionNotFoundError", "HTTP Error 404", "does not appear to have a file named", "Repository Not Found", "doesn't exist on the Hub", "DatasetNotFoundError", "HFValidationError", "Repo id must"),
        "The model or data set does not exist on the hub under this name.",
        ("check the name; for a private one log in (HF_TOKEN); a local folder needs an existing path",),
        "OSError: my-org/modle is not a local folder and is not a valid model identifier listed on the hub",
        r"^(?!.*LocalEntryNotFoundError)",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "network",
        ("We couldn't connect to", "Temporary failure in name resolution", "Name or service not known", "nodename nor servname provided", "Failed to resolve", "Could not resolve host", "Network is unreachable",
         "Max retries exceeded with url", "503 Server Error", "502 Server Error", "504 Server Error", "Service Unavailable", "SSLEOFError", "Connection aborted", "gaierror", "LocalEntryNotFoundError", "ConnectTimeout", "ReadTimeout", "Read timed out", "Connection timed out", "Remote end closed connection", "OfflineModeIsEnabled", "URLError", "ConnectionError", "IncompleteRead",
         "RemoteDisconnected", "MaxRetryError", "Connection refused", "ServerDisconnectedError", "ClientConnectorError", "ChunkedEncodingError", "Tunnel connection failed", "ProxyError", "initialization has timed out", "outgoing traffic has been disabled", "NewConnectionError"),
        "A download or a service on the network could not be reached.",
        ("this machine may have no way out: download before, then run with HF_HUB_OFFLINE=1 (or WANDB_MODE=offline)",
         "behind a proxy, set https_proxy in the job"),
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /api/models\"))",
        r"^(?!.*(?:NCCL|gloo|c10d|rendezvous|NCCL WARN|TCPStore|slurmstepd|srun:|another process is utilizing)).*$",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "certificate",
        ("CERTIFICATE_VERIFY_FAILED", "SSL certificate problem", "unable to get local issuer certificate", "cannot verify", "certificate verify failed", "server certificate verification failed", "certificate has expired"),
        "The certificate of a server could not be verified.",
        ("behind an inspecting proxy, set REQUESTS_CA_BUNDLE and SSL_CERT_FILE to its certificate; check the clock",),
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate",
        r"^(?!.*cannot verify)|cannot verify \S+ certificate",
    ),
    Rule(
        "rate-limit",
        ("429 Client Error", "Too Many Requests", "HTTP Error 429", "rate limit", "Rate limit", "RateLimit", "over its data quota", "Quota exceeded for", "too many requests", "toomanyrequests"),
        "A service refuses more requests for now.",
        ("download once into a shared cache (HF_HOME), or log in for a higher limit; start fewer jobs at once",),
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hub.example/api",
        r"429|(?i:too ?many ?requests)|(?i:rate limit).*(?:exceed|reach|hit)|RateLimit\w*(?:Error|Exceeded)|data quota|Quota exceeded for",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "credentials",
        ("api_key not configured", "wandb.errors.UsageError", "Unable to locate credentials", "NoCredentialsError", "No API key configured", "ExpiredToken", "Login failed", "InvalidAccessKeyId", "401 Client Error", "403 Client Error", "401 Unauthorized", "403 Forbidden", "AuthenticationError", "could not read Username", "Permission denied (publickey", "Invalid username or password", "AccessDenied", "permission_denied", "401 Authorization Required", "error code 401", "Error 401", "Error 403", "[401]", "[403]", "HTTP 401", "HTTP 403", "do not have permission to access", "DefaultCredentialsError", "Host key verification failed", "HTTP Error 403", "HTTP Error 401", "occurred (403)", "occurred (401)"),
        "A service refuses the job's credentials, or there are none.",
        ("log in once as the user of the job (wandb login, aws configure, huggingface-cli login), or export the key before gbatch",),
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        confidence=Confidence.LIKELY,
    ),
    Rule(
        "install-failed",
        ("ERROR: Could not find a version that satisfies the requirement", "ERROR: No matching distribution found", "ResolutionImpossible", "PackagesNotFoundError", "ResolvePackageNotFound", "UnsatisfiableError", "ERROR: Could not build wheels", "ERROR: Failed building wheel", "ERROR: Failed to build", "No solution found when resolving", "Could not install packages", "externally-managed-environment", "error: subprocess-exited-with-error", "metadata-generation-failed"),
        "The installation of a package failed inside the job.",
        ("install packages before the job, in an environment that the job then uses (--venv)",),
        "ERROR: No matching distribution found for torch==2.99.0",
        confidence=Confidence.LIKELY,
        depth=Depth.GENERAL,
    ),
)  # fmt: skip
