//! One POST at a time: the connection, its limits, its proxy, its trust roots.
//!
//! Owns: everything that knows `ureq`. Promises: no redirect is followed, so the key goes to the
//! configured server alone; each request has its own agent and connection, so one that was given up
//! is never sent later and a dead idle connection costs nobody a turn; a stop wakes every wait.
//! Leans on ureq 3.5 for HTTP/1.1 and TLS: its time-outs count every byte as life,
//! `Agent::shutdown` wakes a blocked read or write, and a body is asked for only once lookup, proxy,
//! connection and TLS are done. Gives up: a name lookup and a TCP connect can't be interrupted, so
//! they happen on a thread that may be left behind.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ureq::config::Config;
use ureq::http::{HeaderMap, HeaderValue, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, BodyReader, Proxy, ProxyProtocol, SendBody, Timeout};

use super::{ModelError, OutputClosed};
use crate::limits::{CONNECT_SECONDS, ERROR_TEXT_CHARS, READ_BYTES, SEND_BYTES, TICK_MILLIS};
use crate::step::Service;
use crate::sys::process;
use crate::sys::signal::Stop;
use crate::text::{one_line, quote};

/// The way to one server.
pub struct Http {
    config: Config,
    url: Uri,
    authorization: Option<HeaderValue>,
    /// The server, and the proxy before it, in words for a person.
    destination: String,
    idle_seconds: u64,
    connect_limit: Duration,
    /// The agent in use, for the signal thread to shut down.
    agent: Arc<Mutex<Option<Agent>>>,
    stop: Stop,
}

/// The head of an answer, and its body to be read. All of it is outside text.
pub struct Answer {
    pub status: u16,
    headers: HeaderMap,
    pub body: BodyReader<'static>,
}

impl Answer {
    /// The value of a header; empty where there is none.
    pub fn header(&self, name: &str) -> String {
        let value = self.headers.get(name).map(HeaderValue::as_bytes);
        String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
    }

    /// The way in which the body is compressed; empty where it isn't.
    pub fn encoding(&self) -> String {
        let encoding = self.header("content-encoding");
        match encoding.eq_ignore_ascii_case("identity") {
            true => String::new(),
            false => encoding,
        }
    }

    /// How many milliseconds the server asks to wait: `retry-after-ms` (OpenAI's own), else
    /// `Retry-After` in seconds or as a date (RFC 9110, section 10.2.3).
    pub fn retry_after_millis(&self) -> Option<u64> {
        let seconds = self.header("retry-after");
        millis(&self.header("retry-after-ms"), 1.0)
            .or_else(|| millis(&seconds, 1_000.0))
            .or_else(|| millis_until(&seconds, SystemTime::now()))
    }

    /// Where a redirect points to: the host alone, or the path where it stays on this one.
    pub fn location(&self) -> String {
        let location = self.header("location");
        let host = location.parse::<Uri>().ok();
        let host = host.and_then(|url| url.host().map(str::to_owned));
        host.unwrap_or(location)
    }
}

fn millis(number: &str, unit_millis: f64) -> Option<u64> {
    let number: f64 = number.trim().parse().ok()?;
    // The conversion saturates, so an absurd number is a long wait.
    (number.is_finite() && number >= 0.0).then_some((number * unit_millis).ceil() as u64)
}

/// From `now` to an HTTP date, as `Sun, 06 Nov 1994 08:49:37 GMT` or, the two older ways,
/// `Sunday, 06-Nov-94 08:49:37 GMT` and `Sun Nov  6 08:49:37 1994`; zero for a date that is over.
fn millis_until(date: &str, now: SystemTime) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words = date.split([' ', ',', '-', ':']).filter(|it| !it.is_empty());
    let words: Vec<&str> = words.skip(1).take(6).collect();
    let (day, month, year, clock_words) = match *words.as_slice() {
        [month, day, h, m, s, year] if MONTHS.contains(&month) => (day, month, year, [h, m, s]),
        [day, month, year, h, m, s] => (day, month, year, [h, m, s]),
        _ => return None,
    };
    let day: u64 = day.parse().ok().filter(|day| *day < 32)?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64;
    let year: u64 = match year.parse().ok()? {
        short @ 0..70 => short + 2000,
        short @ 70..100 => short + 1900,
        year @ 1970..=9999 => year,
        _ => return None,
    };
    let mut clock = [0u64; 3];
    for (part, word) in clock.iter_mut().zip(clock_words) {
        *part = word.parse().ok().filter(|number| *number < 61)?;
    }
    // Days since 1970, counted in years that begin in March, so that the leap day comes last.
    let (shifted_year, shifted_month) = (year - u64::from(month < 2), (month + 10) % 12);
    let leap_days = shifted_year / 4 - shifted_year / 100 + shifted_year / 400;
    let days = (shifted_year * 365 + leap_days + (shifted_month * 153 + 2) / 5 + day).checked_sub(719_469)?;
    let [hours, minutes, seconds] = clock;
    let then = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let wait = Duration::from_secs(then).saturating_sub(now);
    u64::try_from(wait.as_millis()).ok()
}

/// The head of every body: whoever reads it has reached the server.
struct Reached(Arc<AtomicBool>);

impl Read for Reached {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.store(true, Ordering::SeqCst);
        Ok(0)
    }
}

/// Fills each buffer from all the parts of a body, so that a short one is one packet.
struct Filled<R>(R);

impl<R: Read> Read for Filled<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(room @ [_, ..]) = buffer.get_mut(filled..) {
            match self.0.read(room)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

impl Http {
    /// Checks what the settings say; nothing is connected yet.
    pub fn new(service: &Service, stop: Stop) -> Result<Http, ModelError> {
        let url = format!("{}/responses", service.base_url.trim_end_matches('/'));
        let url = Uri::try_from(url).ok().filter(|url| url.host().is_some());
        let url = url.ok_or_else(|| {
            let base_url = quote(&service.base_url);
            ModelError::Settings(format!("base_url is {base_url}, which is no URL; set another"))
        })?;
        let idle = Some(Duration::from_secs(service.idle_seconds));
        let connect_limit = Duration::from_secs(CONNECT_SECONDS);
        let (proxy, via) = proxy(service)?;
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            .input_buffer_size(READ_BYTES)
            .output_buffer_size(SEND_BYTES)
            .user_agent(concat!("mino/", env!("CARGO_PKG_VERSION")))
            .proxy(proxy)
            .tls_config(TlsConfig::builder().root_certs(roots(service)?).build())
            .timeout_connect(Some(connect_limit))
            .timeout_per_read(idle)
            .timeout_per_write(idle)
            .build();
        let agent = Arc::new(Mutex::new(None::<Agent>));
        let current = agent.clone();
        stop.on_stop(move || {
            if let Some(agent) = lock(&current).take() {
                agent.shutdown();
            }
        });
        Ok(Http {
            config,
            destination: format!("{}{via}", quote(url.authority().map_or("", |it| it.as_str()))),
            url,
            authorization: authorization(service)?,
            idle_seconds: service.idle_seconds,
            connect_limit,
            agent,
            stop,
        })
    }

    /// Where requests go.
    pub fn url(&self) -> String {
        self.url.to_string()
    }

    /// Sends `body`, which has `length` bytes, and waits for the headers of the answer; `waiting`
    /// is called about every `TICK_MILLIS` meanwhile.
    pub fn post(
        &self,
        body: impl Read + Send + 'static,
        length: u64,
        waiting: &mut dyn FnMut() -> Result<(), OutputClosed>,
    ) -> Result<Answer, ModelError> {
        let agent = Agent::new_with_config(self.config.clone());
        // A signal from here on finds the agent; an earlier one is seen now.
        *lock(&self.agent) = Some(agent.clone());
        if self.stop.stopped() {
            return Err(ModelError::Cancelled);
        }
        let answer = self.exchange(&agent, body, length, waiting);
        if answer.is_err() {
            // What is left behind on its thread must not be sent, should it ever connect.
            agent.shutdown();
        }
        answer
    }

    fn exchange(
        &self,
        agent: &Agent,
        body: impl Read + Send + 'static,
        length: u64,
        waiting: &mut dyn FnMut() -> Result<(), OutputClosed>,
    ) -> Result<Answer, ModelError> {
        let reached = Arc::new(AtomicBool::new(false));
        let body = Filled(Reached(reached.clone()).chain(body));
        let mut request = agent
            .post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, length)
            .header(header::ACCEPT, "text/event-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        process::configure_name_service();
        let (answer, answered) = mpsc::channel();
        thread::Builder::new()
            .name("request".into())
            .spawn(move || {
                // Nobody listens any more where the request was given up.
                let _ = answer.send(request.send(SendBody::from_owned_reader(body)));
            })
            .map_err(|error| self.unreachable(format!("no thread for it: {error}"), false))?;
        let start = Instant::now();
        loop {
            let news = answered.recv_timeout(Duration::from_millis(TICK_MILLIS));
            let reached = reached.load(Ordering::SeqCst);
            match news {
                _ if self.stop.stopped() => return Err(ModelError::Cancelled),
                Ok(Ok(answer)) => {
                    let (head, body) = answer.into_parts();
                    return Ok(Answer {
                        status: head.status.as_u16(),
                        headers: head.headers,
                        body: body.into_reader(),
                    });
                }
                Ok(Err(error)) => return Err(self.explain(error, reached)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ModelError::Cut { begun: false });
                }
                Err(RecvTimeoutError::Timeout) if !reached && start.elapsed() > self.connect_limit => {
                    return Err(self.too_slow());
                }
                Err(RecvTimeoutError::Timeout) => waiting()?,
            }
        }
    }

    /// What a failed read of an answer's body means. A signal looks like any other failure, so the
    /// caller looks at the flag first.
    pub fn broken(&self, error: io::Error) -> ModelError {
        match ureq::Error::from(error) {
            ureq::Error::Timeout(_) => self.silent(),
            _ => ModelError::Cut { begun: false },
        }
    }

    fn explain(&self, error: ureq::Error, reached: bool) -> ModelError {
        match error {
            ureq::Error::Timeout(Timeout::Connect) => self.too_slow(),
            ureq::Error::Timeout(_) => self.silent(),
            ureq::Error::Io(_) if reached => ModelError::Cut { begun: false },
            // ureq reports a certificate that isn't trusted, and a peer that speaks no TLS, so.
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                let cause = error.to_string();
                let speaks_no_tls = cause.contains("corrupt message");
                let why = "it does not speak TLS there; perhaps base_url begins with http://";
                self.unreachable(if speaks_no_tls { why.into() } else { cause }, true)
            }
            ureq::Error::Io(error) => self.unreachable(error.to_string(), false),
            // "proxy server responded 407/407"
            ureq::Error::ConnectProxyFailed(why) => {
                self.unreachable(why.split('/').next().unwrap_or_default().into(), false)
            }
            // Also what answered and does not speak HTTP.
            other => self.unreachable(other.to_string(), false),
        }
    }

    fn silent(&self) -> ModelError {
        ModelError::Silent { seconds: self.idle_seconds }
    }

    fn too_slow(&self) -> ModelError {
        let seconds = self.connect_limit.as_secs();
        self.unreachable(format!("name lookup and connecting took longer than {seconds} s"), false)
    }

    fn unreachable(&self, cause: String, tls: bool) -> ModelError {
        ModelError::Unreachable {
            server: self.destination.clone(),
            cause: one_line(&cause, ERROR_TEXT_CHARS),
            tls,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn authorization(service: &Service) -> Result<Option<HeaderValue>, ModelError> {
    let Some(key) = &service.key else {
        return Ok(None);
    };
    let value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()));
    let mut value = value.map_err(|_| {
        let source = one_line(&service.key_source, ERROR_TEXT_CHARS);
        ModelError::Settings(format!(
            "the API key (from {source}) has characters that no header can carry; set another"
        ))
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The proxy, and how a message names it. Its value may hold a password, so the value is not shown.
fn proxy(service: &Service) -> Result<(Option<Proxy>, String), ModelError> {
    let Some((variable, value)) = &service.proxy else {
        return Ok((None, String::new()));
    };
    let usable = |proxy: &Proxy| matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https);
    match Proxy::new(value).ok().filter(usable) {
        Some(proxy) => {
            let address = quote(&format!("{}:{}", proxy.host(), proxy.port()));
            let via = format!(" through the proxy {address} of {variable}");
            Ok((Some(proxy), via))
        }
        None => Err(ModelError::Settings(format!(
            "{variable} is no URL of an HTTP or HTTPS proxy, and other kinds can't be used; \
             correct or unset it"
        ))),
    }
}

/// The authorities that are trusted: the built-in ones, or in their place those of the user's file.
fn roots(service: &Service) -> Result<RootCerts, ModelError> {
    let Some((file, pem)) = &service.roots else {
        return Ok(RootCerts::WebPki);
    };
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        match item {
            // A certificate is a DER sequence. What is none would be skipped without a word later.
            Ok(PemItem::Certificate(found)) if found.der().first() == Some(&0x30) => {
                certificates.push(found);
            }
            Ok(PemItem::PrivateKey(_)) => {}
            _ => return Err(bad_roots(file, "is no proper PEM file")),
        }
    }
    match certificates.is_empty() {
        true => Err(bad_roots(file, "holds no certificate")),
        false => Ok(RootCerts::from(certificates)),
    }
}

fn bad_roots(file: &str, why: &str) -> ModelError {
    let file = quote(file);
    ModelError::Settings(format!("SSL_CERT_FILE names {file}, which {why}; name another or unset it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn service(base_url: String) -> Service {
        Service {
            base_url,
            model: "m".into(),
            key: None,
            key_source: String::new(),
            idle_seconds: 60,
            proxy: None,
            roots: None,
        }
    }

    #[test]
    fn a_wait_is_read_in_every_form() {
        for (number, unit, expected) in [
            ("2", 1_000.0, Some(2_000)),
            (" 1.5 ", 1_000.0, Some(1_500)),
            ("0", 1_000.0, Some(0)),
            ("0.2", 1.0, Some(1)),
            ("1e300", 1_000.0, Some(u64::MAX)),
            ("-1", 1_000.0, None),
            ("NaN", 1_000.0, None),
            ("inf", 1_000.0, None),
            ("soon", 1_000.0, None),
            ("", 1_000.0, None),
        ] {
            assert_eq!(millis(number, unit), expected, "{number:?}");
        }
    }

    #[test]
    fn a_date_is_read_in_its_three_forms() {
        for (date, unix_seconds) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
            ("Sun Nov  6 08:49:37 1994", 784_111_777),
            ("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Tue, 31 Dec 2069 23:59:60 GMT", 3_155_760_000),
            ("Thu, 01 Jan 1970 00:00:03 GMT", 3),
        ] {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds - 3);
            assert_eq!(millis_until(date, now), Some(3_000), "{date}");
            let later = now + Duration::from_secs(60);
            assert_eq!(millis_until(date, later), Some(0), "{date}");
        }
        for bad in [
            "",
            "soon",
            "Sun Nov  6 08:49:37",
            "Sun, 999999999999999999 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 99:49:37 GMT",
        ] {
            assert_eq!(millis_until(bad, SystemTime::UNIX_EPOCH), None, "{bad}");
        }
    }

    #[test]
    fn a_server_that_never_becomes_connected_is_given_up() {
        // It takes the connection and never begins with TLS.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Stop::new().unwrap();
        let mut http = Http::new(&service(format!("https://{address}/v1")), stop).unwrap();
        http.connect_limit = Duration::from_millis(200);
        let answer = http.post(io::empty(), 0, &mut || Ok(()));
        let error = answer.err().unwrap();
        let expected = format!(
            "Cannot connect to \"{address}\": name lookup and connecting took longer than 0 s; \
             check base_url, the network and whether the server runs."
        );
        assert_eq!(error.to_string(), expected);
        // What was left behind has lost its connection, so nothing can be sent later.
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        peer.read_to_end(&mut Vec::new()).unwrap();
    }
}
