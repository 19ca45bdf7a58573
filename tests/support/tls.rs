//! TLS on loopback, under an authority that nobody knows, and a proxy before it.
//!
//! Owns: the authority, the server in front of an [`Endpoint`](super::endpoint::Endpoint), and what
//! the proxy was asked. Promises: the endpoint sees the very request that came through TLS. Leans on
//! rustls and rcgen. Gives up: one request a connection, which is all that `mino` makes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A server that speaks TLS to clients and plain HTTP to what is behind it.
pub struct Front {
    pub address: SocketAddr,
    /// The authority's certificate.
    pub pem: String,
}

impl Front {
    /// With a certificate for `names`, before the server at `behind`.
    pub fn start(names: &[&str], behind: SocketAddr) -> Front {
        let (config, pem) = config(names);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let config = config.clone();
                // A client that trusts nobody leaves within the handshake.
                thread::spawn(move || pass(client, config, behind));
            }
        });
        Front { address, pem }
    }
}

fn config(names: &[&str]) -> (Arc<ServerConfig>, String) {
    let authority_key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed = authority.self_signed(&authority_key);
    let pem = signed.expect("an authority").pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).expect("names");
    let certificate = certificate.signed_by(&key, &issuer).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        );
    (Arc::new(config.expect("a configuration")), pem)
}

/// One request through, and its answer back.
fn pass(client: TcpStream, config: Arc<ServerConfig>, behind: SocketAddr) -> io::Result<()> {
    let session = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut reader = BufReader::new(StreamOwned::new(session, client));
    let (mut request, mut length) = (Vec::new(), 0);
    while !request.ends_with(b"\r\n\r\n") {
        let start = request.len();
        if reader.read_until(b'\n', &mut request)? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&request[start..]).to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let start = request.len();
    request.resize(start + length, 0);
    reader.read_exact(&mut request[start..])?;
    let mut server = TcpStream::connect(behind)?;
    server.write_all(&request)?;
    // Nothing more will come, so the answer ends with the connection.
    server.shutdown(Shutdown::Write)?;
    let mut tls = reader.into_inner();
    io::copy(&mut server, &mut tls)?;
    tls.conn.send_close_notify();
    tls.flush()
}

/// A proxy that tunnels every CONNECT to one address, whatever was asked for.
pub struct Tunnel {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Tunnel {
    pub fn start(to: SocketAddr) -> Tunnel {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let kept = asked.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let kept = kept.clone();
                thread::spawn(move || tunnel(client, to, &kept));
            }
        });
        Tunnel { address, asked }
    }

    /// The heads of all requests so far, such as `CONNECT host:443 HTTP/1.1` and what followed it.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn tunnel(mut client: TcpStream, to: SocketAddr, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    asked.lock().unwrap().push(head);
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let mut server = TcpStream::connect(to)?;
    let (mut back_from, mut back_to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        // Either side may go away first; the other end tells it by closing, too.
        let _ = io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(Shutdown::Write);
    });
    io::copy(&mut client, &mut server)?;
    server.shutdown(Shutdown::Write)
}
